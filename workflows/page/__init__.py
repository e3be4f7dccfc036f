"""HTML pages with charts: one file each, without JavaScript or external references."""
