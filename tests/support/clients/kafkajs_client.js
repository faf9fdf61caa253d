// What a program with KafkaJS does, from its first topic to its last group. Prints one JSON object of what it saw.
// Usage: node kafkajs_client.js HOST:PORT RECORDS   (NODE_PATH names where the package kafkajs lies)
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const [, , bootstrap, count] = process.argv
const RECORDS = Number(count)
const TOPIC = 'kafkajs-events'
const GROUP = 'kafkajs-readers'
const kafka = new Kafka({ clientId: 'kafkajs', brokers: [bootstrap], logLevel: logLevel.NOTHING })

const message = index => ({
  key: `key-${index}`,
  value: `value ${index} ${'é'.repeat(index % 50)}`,
  headers: { index: String(index) },
  timestamp: String(1700000000000 + index),
})

async function produce() {
  const plain = kafka.producer()
  const idempotent = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await plain.connect()
  await idempotent.connect()
  const ways = [
    [plain, { acks: 1 }],
    [plain, { acks: -1, compression: CompressionTypes.GZIP }],
    [idempotent, { acks: -1 }],
    [plain, { acks: 0 }],
  ]
  const step = 500
  for (let at = 0, turn = 0; at < RECORDS; at += step, turn += 1) {
    const [producer, options] = ways[turn % ways.length]
    const messages = Array.from({ length: Math.min(step, RECORDS - at) }, (_, i) => message(at + i))
    await producer.send({ topic: TOPIC, messages, ...options })
  }
  await plain.disconnect()
  await idempotent.disconnect()
}

async function consume() {
  const consumer = kafka.consumer({ groupId: GROUP })
  await consumer.connect()
  await consumer.subscribe({ topic: TOPIC, fromBeginning: true })
  const seen = []
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
    consumer
      .run({
        eachMessage: async ({ partition, message: { offset, key, value, timestamp, headers } }) => {
          seen.push([partition, Number(offset), `${key}`, `${value}`, Number(timestamp), `${headers.index}`])
          if (seen.length === RECORDS) resolve()
        },
      })
      .catch(reject)
  })
  const admin = kafka.admin()
  await admin.connect()
  const members = (await admin.describeGroups([GROUP])).groups[0].members.length
  const refused = await admin.deleteGroups([GROUP]).then(() => 'deleted', error => error.groups[0].error.type)
  await admin.disconnect()
  await consumer.disconnect() // commits what was read
  return { seen, members, refused }
}

async function main() {
  const admin = kafka.admin()
  await admin.connect()
  const created = await admin.createTopics({ topics: [{ topic: TOPIC, numPartitions: 2 }] })
  await admin.createPartitions({ topicPartitions: [{ topic: TOPIC, count: 3 }] })
  await produce()
  const { seen, members, refused } = await consume()
  const ends = await admin.fetchTopicOffsets(TOPIC)
  const committed = await admin.fetchOffsets({ groupId: GROUP, topics: [TOPIC] })
  const groups = (await admin.listGroups()).groups
  const described = (await admin.describeGroups([GROUP])).groups[0]
  await admin.setOffsets({ groupId: GROUP, topic: TOPIC, partitions: [{ partition: 0, offset: '5' }] })
  const set = await admin.fetchOffsets({ groupId: GROUP, topics: [TOPIC] })
  await admin.alterConfigs({
    validateOnly: false,
    resources: [{ type: 2, name: TOPIC, configEntries: [{ name: 'retention.ms', value: '3600000' }] }],
  })
  const configs = await admin.describeConfigs({
    resources: [{ type: 2, name: TOPIC, configNames: ['retention.ms'] }],
    includeSynonyms: false,
  })
  await admin.deleteTopicRecords({ topic: TOPIC, partitions: [{ partition: 0, offset: '7' }] })
  const trimmed = await admin.fetchTopicOffsets(TOPIC)
  await admin.deleteGroups([GROUP])
  const left = (await admin.listGroups()).groups
  const nodes = (await admin.describeCluster()).brokers.length
  await admin.deleteTopics({ topics: [TOPIC] })
  const topics = await admin.listTopics()
  await admin.disconnect()
  return {
    created, seen, members, refused, ends, committed, groups, state: described.state, set, trimmed, left, nodes, topics,
    retention: configs.resources[0].configEntries[0].configValue,
  }
}

main().then(
  result => process.stdout.write(JSON.stringify(result)),
  error => {
    process.stderr.write(`${error.stack}\n`)
    process.exitCode = 1
  }
)
