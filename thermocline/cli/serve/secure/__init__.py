"""`serve --secure`: a cluster's certificate authority (`authority.py`), the files of a secured data directory
(`directory.py`), the configs that follow from them (`settings.py`), and properties for clients (`clients.py`)."""
