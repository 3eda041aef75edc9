"""Images of formats whose headers we do not read ourselves are decoded in child processes.

A hostile image then costs a child process, never the server.
"""
