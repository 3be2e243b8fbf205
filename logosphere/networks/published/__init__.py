"""Networks in the layouts that papers publish their weights in, and the denoiser around them."""
