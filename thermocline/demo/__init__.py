"""The demo, `python -m thermocline.demo` or `make demo`: the acts (`__main__.py`), and what they play with."""
