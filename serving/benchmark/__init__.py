"""Closed-loop load, report and plot."""
