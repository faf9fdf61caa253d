"""The module name under which Spark finds the source: `spark.read.format("thermocline")`."""

from thermocline.pipeline.spark.source import ThermoclineSource as DefaultSource

__all__ = ["DefaultSource"]
