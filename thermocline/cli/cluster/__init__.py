"""`thermocline cluster`: who is there and what is wrong; giving a broker up; rooms for moving and restoring.

Always true: any broker may be asked, and Apache Kafka's too where its protocol has the request.
"""
