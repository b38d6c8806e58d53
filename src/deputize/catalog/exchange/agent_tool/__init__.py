"""Write and read the 19 objects of the tool standard Agent Tool 0.2.0 without losing anything of either side."""
