"""Ways to a broker: the stock client, our own for what that cannot ask, the HTTP port; and addresses as they are typed.

Must not know what commands ask for.
"""
