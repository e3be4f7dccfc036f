"""Starting several workers, on one host or on several, and keeping an elastic run alive."""
