"""Scoring rows from files, and recommending items to users."""
