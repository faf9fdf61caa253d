"""The controller: the one broker that decides for the cluster, by commits to `cluster.json`.

The path of a CreateTopics, from the request to partitions that serve:
1. `broker/handlers/admin/topics.py` hands a decision to `controller_requests.py`. On another broker the request is
  forwarded (`broker/peers/forward.py`).
2. `commit_queue.py` queues it (at most 1 000). Its one task lets each waiting decision see the image and the decisions
   before it. Decisions are pure (`decisions`); they return records, or an error with Kafka's code.
3. The records of all decisions are one commit (`broker/metadata/cluster_root.py`). No answer leaves before the outcome
   of the commit is known. If the outcome is unknown, the queue resolves it before the next commit.
4. The new image reaches every broker: here at once, elsewhere with a heartbeat's answer or a poll of `cluster.json`
   (`broker/following`).
5. The publisher compares the old image with the new one and starts the leaders.
6. The answer waits until the partitions serve, or until its timeout.

Brokers' own requests (sessions, heartbeats, in-sync sets) go to `broker_rpc.py`. `sessions.py` ends silent sessions,
`unfit_brokers.py` moves leaderships off brokers that report a failure, `unclean_recovery.py` chooses a leader if no
in-sync replica is left. A controller that lost its epoch answers NOT_CONTROLLER and commits nothing more.
"""
