"""What makes an operator go round: what is told of a cluster, which objects are due, who works on them, and whether all
that lives.

Knows no kind of Syncline's: reconciles are handed in.
"""
