"""Other ways to serve the same NVTabular workflow and SavedModel, as people write them; `bench.stacks` measures them.

scorer        the workflow and the model in one process
fastapi_app   behind FastAPI
mlflow_model  behind MLflow's model server
"""
