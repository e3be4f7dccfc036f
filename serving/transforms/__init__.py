"""What stands before a model in a model repository: a plan, or a workflow that runs through NVTabular."""
