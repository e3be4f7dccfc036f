"""Other ways to train and to serve the same, as people write them.

native        the two input pipelines of NVIDIA's Criteo notebook; `bench.criteo` measures them
scorer        the workflow and the SavedModel in one process; `bench.alternatives` measures this one and the next two
fastapi_app   behind FastAPI
mlflow_model  behind MLflow's model server
"""
