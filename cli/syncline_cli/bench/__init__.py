"""`syncline bench`: what the codecs reach, on data that anybody can make again.

`views` is what is encoded, `synthetic` and `quantized` make it, `peers` and `bounds` are what stands beside it, `figures` measures, `codec`
is the command. Everything here is bytes counted; speeds are measured by `bench/`, in the source tree.
"""
