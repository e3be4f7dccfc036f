"""What is recorded in MLflow beside training: reports and exports of a run, and what is read back. Imports MLflow."""
