"""Model repositories: exported ensembles and the backends that serve them."""
