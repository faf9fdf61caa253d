"""Kafka's StandardAuthorizer: decides by the ACLs of the cluster's image.

`kinds` has Kafka's numbers of resource types, pattern types, operations and permissions. `acl_index` finds the ACLs of
one resource without scanning the others. `standard` decides, remembers its decisions, and follows the image. `access`
has the permissions of one client, which handlers and `broker.security.rules` ask.

These modules know nothing of requests, brokers or connections. Source: Kafka 4.3.1's StandardAuthorizerData and
Authorizer.
"""
