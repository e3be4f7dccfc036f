"""Other common ways to train and serve the same models.

native        the two input pipelines of NVIDIA's Criteo notebook, measured by `bench.training.criteo`
scorer        the workflow and the SavedModel in one process; `bench.serving.alternatives` measures this and the next
two fastapi_app   the scorer behind FastAPI
mlflow_model  the scorer behind MLflow's model server
"""
