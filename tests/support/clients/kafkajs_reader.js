// Reads a topic from its first offsets with KafkaJS until it saw the LAST offset of each partition, a line a record:
// node kafkajs_reader.js BOOTSTRAP TOPIC ISOLATION LAST,LAST…; NODE_PATH names where the package kafkajs lies.
const { Kafka, logLevel } = require('kafkajs')

const [, , bootstrap, TOPIC, isolation, last] = process.argv
const kafka = new Kafka({ clientId: 'kafkajs', brokers: bootstrap.split(','), logLevel: logLevel.NOTHING })

async function main() {
  const consumer = kafka.consumer({ groupId: `kafkajs ${isolation}`, readUncommitted: isolation !== 'read_committed' })
  await consumer.connect()
  await consumer.subscribe({ topic: TOPIC, fromBeginning: true })
  const lines = []
  const open = new Map(last.split(',').entries())
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer
      .run({
        autoCommit: false,
        eachBatch: async ({ batch }) => {
          for (const { offset, value } of batch.messages) {
            lines.push(`${batch.partition} ${offset} ${value}`)
            if (open.get(batch.partition) === offset) open.delete(batch.partition)
          }
          if (open.size === 0) resolve()
        },
      })
      .catch(reject)
  })
  process.stdout.write(lines.join('\n'))
  await consumer.disconnect()
}

main().catch(error => {
  process.stderr.write(`${error.stack}\n`)
  process.exit(1)
})
