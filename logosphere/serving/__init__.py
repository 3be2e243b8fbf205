"""An HTTP server of completions in the protocol of OpenAI, for the models of every system."""
