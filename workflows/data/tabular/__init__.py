"""Tables of any schema: files of rows whose columns a `TableConfig` describes, the data half of a recipe file."""
