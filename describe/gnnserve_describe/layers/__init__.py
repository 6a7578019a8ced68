"""From a live module to a network that is listed layer by layer, where its calls of torch can be read as one.

The module is called once over a small graph while each function of torch and each convolution is recorded (`recording`
by `functions` and `convolutions`) as a value of `values`; the values are then read backwards as layers (`reading`) with
the products before and behind them (`products`). Only what is understood as a whole is written.
"""
