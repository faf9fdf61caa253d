"""The campaign with transactions: loops of stock clients consume, transform and produce while a nemesis does harm.

`python -m tests.campaign --transactions --minutes 10 --bucket versitygw`. `copies` says what the output may show,
`loops` starts, kills and doubles the loops, `readers` reads the output at read_committed, `course` is the course of
it all. `loop_confluent`, `Loop.java` and tests/support/clients/lives/franz/loop are the loops themselves: one contract.

A loop is `PROGRAM ACCESS INPUT OUTPUT GROUP TRANSACTIONAL-ID LIFE ABORTED`. Until its standard input ends it

- takes up to 1 000 records of its group's, within 0.2 s;
- sends each to the same partition of OUTPUT as `FATE COUNT LABEL ` and the record's value: COUNT records are in the
  transaction LABEL, FATE is `c` where it means to commit and `a` where it means to abort (ABORTED of 1 000);
- adds the positions to the transaction, ends it, and prints `committed COUNT MS` or `aborted COUNT MS`;
- goes on from the committed positions after an abort, and after a rebalance.

It ends with 0 when its input did, and with 3 when its client says that it cannot go on.
"""
