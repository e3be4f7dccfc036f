"""Scores for files of rows, and recommendations for a user."""
