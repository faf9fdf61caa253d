// A life of KafkaJS (see __init__.py). NODE_PATH names where the package kafkajs lies.
const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const [, , file, TOPIC, COPY, GROUP, ID, count] = process.argv
const RECORDS = Number(count)
// KafkaJS 2.2.4 deals messages without a partition again at each retry: the other partition cannot know that it is one.
const PARTITIONS = 3
const { bootstrap, login } = JSON.parse(fs.readFileSync(file))
const security = login && {
  ssl: { ca: [fs.readFileSync(login.ca_file)] },
  sasl: { mechanism: 'scram-sha-512', username: login.user, password: login.password },
}
const retry = { retries: 60, initialRetryTime: 50, maxRetryTime: 1000 }
const kafka = new Kafka({
  clientId: 'kafkajs', brokers: bootstrap.split(','), logLevel: logLevel.NOTHING, retry, ...security,
})
const pause = ms => new Promise(resolve => setTimeout(resolve, ms))
const tell = line => process.stdout.write(`${line}\n`)

async function write() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, retry })
  await producer.connect()
  for (let n = 0; n < RECORDS; n += 1) {
    await producer.send({ topic: TOPIC, acks: -1, messages: [{ value: String(n), partition: n % PARTITIONS }] })
    tell(`acked ${n}`)
    await pause(10)
  }
  await producer.disconnect()
}

let done = 0

async function copy(producer) {
  const consumer = kafka.consumer({ groupId: GROUP, retry, metadataMaxAge: 2000 })
  await consumer.connect()
  await consumer.subscribe({ topic: TOPIC, fromBeginning: true })
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || reject(payload.error))
    consumer
      .run({
        autoCommit: false,
        eachBatchAutoResolve: false,
        eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
          for (let at = 0; at < batch.messages.length && isRunning() && !isStale(); at += 20) {
            const part = batch.messages.slice(at, at + 20)
            const last = part[part.length - 1].offset
            const transaction = await producer.transaction()
            try {
              const messages = part.map(({ value }) => ({ value, partition: batch.partition }))
              await transaction.send({ topic: COPY, acks: -1, messages })
              const partitions = [{ partition: batch.partition, offset: String(BigInt(last) + 1n) }]
              await transaction.sendOffsets({ consumerGroupId: GROUP, topics: [{ topic: TOPIC, partitions }] })
              await transaction.commit()
            } catch (failed) {
              process.stderr.write(`aborted for ${failed}\n`)
              await transaction.abort()
              throw failed // KafkaJS reads this batch again
            }
            resolveOffset(last)
            done += part.length
            tell(`copied ${done}`)
            if (done === RECORDS) resolve()
            await heartbeat()
            await pause(50)
          }
        },
      })
      .catch(reject)
  })
  await consumer.disconnect()
}

async function main() {
  await write()
  const producer = kafka.producer({ transactionalId: ID, idempotent: true, maxInFlightRequests: 1, retry })
  await producer.connect()
  await copy(producer)
  await producer.disconnect()
}

main().catch(error => {
  process.stderr.write(`${error.stack}\n`)
  process.exit(1)
})
