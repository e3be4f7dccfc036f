"""Other common ways to train and serve the same models.

native        the two input pipelines of NVIDIA's Criteo notebook, measured by `bench.training.criteo`
collaborative ALS and item-kNN, measured by `bench.training.quality`
tabular       models of other libraries, measured by `bench.training.tables`
notebook      workflows and models as a notebook saves them, measured by `bench.serving.foreign`
scorer        dictionaries and ONNX Runtime, behind the servers beside it; measured by `bench.serving.alternatives`
nvtabular_app NVTabular and TensorFlow behind FastAPI, measured by the same
processes     starts the servers in environments of their own
"""
