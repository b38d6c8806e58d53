"""What tools there are: contracts read, admitted, versioned, compiled, kept, found.

Below are the store and the words; above is the lifecycle, which brings this room together with the others.
"""
