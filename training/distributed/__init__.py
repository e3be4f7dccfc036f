"""Several processes that train one model, with Horovod."""
