// Reads a topic from its first offsets with KafkaJS until it has COUNT records, a line each:
// node kafkajs_reader.js BOOTSTRAP TOPIC ISOLATION COUNT; NODE_PATH names where the package kafkajs lies.
const { Kafka, logLevel } = require('kafkajs')

const [, , bootstrap, TOPIC, isolation, count] = process.argv
const kafka = new Kafka({ clientId: 'kafkajs', brokers: bootstrap.split(','), logLevel: logLevel.NOTHING })

async function main() {
  const consumer = kafka.consumer({ groupId: `kafkajs ${isolation}`, readUncommitted: isolation !== 'read_committed' })
  await consumer.connect()
  await consumer.subscribe({ topic: TOPIC, fromBeginning: true })
  const lines = []
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer
      .run({
        autoCommit: false,
        eachBatch: async ({ batch }) => {
          for (const { offset, value } of batch.messages) lines.push(`${batch.partition} ${offset} ${value}`)
          if (lines.length >= Number(count)) resolve()
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
