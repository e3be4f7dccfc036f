"""Other ways to train and to serve the same, as people write them.

native        the two input pipelines of NVIDIA's Criteo notebook; `bench.training.criteo` measures them
scorer        the workflow and the SavedModel in one process; `bench.serving.alternatives` measures these three
fastapi_app   behind FastAPI
mlflow_model  behind MLflow's model server
"""
