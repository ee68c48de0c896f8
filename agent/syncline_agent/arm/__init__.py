"""The arm: what lives inside an engine process and changes its weights in place, and the agent's end of its socket.

`live` and `memory` are the arm itself and know no sockets; `client` connects it to the agent; `server` is the agent's
side and gives the follower an `Engine`; `messages` and PROTOCOL.md say what passes between them.
"""
