"""Training of one model by several processes, with Horovod."""
