"""Train one model in several processes with Horovod."""
