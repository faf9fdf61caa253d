"""The demos: `python -m thermocline.demo` (`make demo`) and `python -m thermocline.demo.cluster` (`make
demo-cluster`).
"""
