"""The demo: `python -m thermocline.demo`, or `make demo`."""
