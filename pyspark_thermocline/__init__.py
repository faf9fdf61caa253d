"""The name under which Spark finds the source by itself: `spark.read.format("thermocline")`."""
