// A program with KafkaJS that logs in, by each way that it is given: writes a record, and reads it in a group. Prints one
// JSON object: by the way's name, the value that was read, or the kind and text of the error, and how often it logged in.
// Usage: node kafkajs_logins.js FILE   (NODE_PATH names where the package kafkajs lies)
// FILE is JSON: a list of {name, broker, ssl, sasl, token, for_ms, again_ms}, with files' names in ssl, and a token for
// OAUTHBEARER; for_ms: so long a record is written again and again, over the same connection; again_ms: so long before
// the session's end it logs in again.
const { readFileSync } = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const ways = JSON.parse(readFileSync(process.argv[2], 'utf8'))

const options = ({ name, broker, ssl, sasl, token, again_ms }) => ({
  clientId: name,
  brokers: [broker],
  logLevel: logLevel.NOTHING,
  retry: { retries: 2 },
  ...(again_ms && { reauthenticationThreshold: again_ms }),
  ...(ssl && {
    ssl: {
      ca: [readFileSync(ssl.ca, 'utf8')],
      ...(ssl.cert && { cert: readFileSync(ssl.cert, 'utf8'), key: readFileSync(ssl.key, 'utf8') }),
      passphrase: ssl.passphrase,
    },
  }),
  ...(sasl && { sasl: { ...sasl, ...(token && { oauthBearerProvider: async () => ({ value: token }) }) } }),
})

async function tried(way) {
  const kafka = new Kafka(options(way))
  const producer = kafka.producer()
  const consumer = kafka.consumer({ groupId: way.name })
  try {
    await producer.connect()
    const until = Date.now() + (way.for_ms || 0)
    let sent = 0
    do {
      await producer.send({ topic: way.name, messages: [{ value: `by ${way.name}` }] })
      sent += 1
    } while (Date.now() < until)
    await consumer.connect()
    await consumer.subscribe({ topic: way.name, fromBeginning: true })
    let count = 0
    const value = await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
      const eachMessage = async ({ message }) => {
        count += 1
        if (count === sent) resolve(`${message.value}`)
      }
      consumer.run({ eachMessage }).catch(reject)
    })
    return { value, sent, count }
  } catch (error) {
    return { error: error.name, text: error.message }
  } finally {
    await Promise.allSettled([producer.disconnect(), consumer.disconnect()])
  }
}

async function main() {
  const found = {}
  for (const way of ways) found[way.name] = await tried(way)
  console.log(JSON.stringify(found))
}

main().then(
  () => process.exit(0),
  error => {
    console.error(error)
    process.exit(1)
  },
)
