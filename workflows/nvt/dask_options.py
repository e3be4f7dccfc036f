"""Options of current Dask versions that Merlin 23.8 needs: DataFrames without query planning, and strings and lists as
Python objects. Dask reads them when a DataFrame is created, so import this before NVTabular, which takes seconds.
"""

import dask

dask.config.set({"dataframe.query-planning": False, "dataframe.convert-string": False})
