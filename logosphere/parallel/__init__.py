"""Several processes that train one model: who they are, how they agree, and how they are started."""
