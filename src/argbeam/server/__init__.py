"""A run over HTTP.

`requests` puts requests in line and decodes those that ask for the same search together, in the one thread that has the
model. `app` is the application: what is accepted, what is answered, and with which status. The extra `argbeam[serve]`
installs what it needs.
"""
