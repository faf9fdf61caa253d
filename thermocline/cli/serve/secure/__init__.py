"""`serve --secure`: a cluster's certificate authority (`authority.py`), the files of a secured data directory
(`directory.py`), the configs of brokers and clients that follow from them (`settings.py`), the start (`setup.py`)."""
