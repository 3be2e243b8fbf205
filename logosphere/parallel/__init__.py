"""Several processes that train or evaluate one model: process groups, and how they are started."""
