// The kafkajs client as a program. Argument: the broker's address. It serves the requests of go/lines/lines.go, one
// JSON object per line with bytes in base64.
'use strict'

const readline = require('node:readline')
const { CompressionCodecs, CompressionTypes, Kafka, Partitioners, logLevel } = require('kafkajs')
const codecs = require('./codecs')
const admin = require('./admin')

const DEADLINE_MS = 30_000
// Below the limit of topics with large messages; for the producer that is kept, so small that a send is many batches
// and a kill hits it in the middle.
const batchBytes = (request) => (request.keep ? 4_000 : 6_000_000)
const RETRY = { retries: 200, initialRetryTime: 100, maxRetryTime: 500 }

const { None, GZIP, Snappy, LZ4, ZSTD } = CompressionTypes
const COMPRESSIONS = { none: None, gzip: GZIP, snappy: Snappy, lz4: LZ4, zstd: ZSTD }
Object.assign(CompressionCodecs, codecs(CompressionTypes))
const kafka = new Kafka({ brokers: [process.argv[2]], logLevel: logLevel.NOTHING, retry: RETRY })

const bytes = (text) => (text === null || text === undefined ? null : Buffer.from(text, 'base64'))
const base64 = (buffer) => (buffer === null || buffer === undefined ? null : Buffer.from(buffer).toString('base64'))

function headersOf(pairs) {
  const made = {}
  for (const { name, value } of pairs ?? []) (made[name] ??= []).push(bytes(value))
  return made
}

function toSend(message) {
  const made = { key: bytes(message.key), value: bytes(message.value), headers: headersOf(message.headers) }
  if (message.partition !== null && message.partition !== undefined) made.partition = message.partition
  if (message.timestamp !== null && message.timestamp !== undefined) made.timestamp = String(message.timestamp)
  return made
}

function fromRead(partition, message) {
  const headers = Object.entries(message.headers).flatMap(([name, values]) =>
    [values].flat().map((value) => ({ name, value: base64(value) })),
  )
  return {
    partition,
    offset: Number(message.offset),
    key: base64(message.key),
    value: base64(message.value),
    headers,
    timestamp: Number(message.timestamp),
  }
}

async function opened(options) {
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, retry: RETRY, ...options })
  await producer.connect()
  return producer
}

// kafkajs makes one batch of all messages of a partition, whatever their size.
function* batches(messages, limit) {
  let batch = []
  let size = 0
  for (const message of messages) {
    const more = message.value?.length ?? 0
    if (batch.length > 0 && size + more > limit) {
      yield batch
      batch = []
      size = 0
    }
    batch.push(message)
    size += more
  }
  if (batch.length > 0) yield batch
}

let kept = null
async function send(request) {
  const producer = (request.keep && kept) || (await opened({ idempotent: request.idempotent ?? false }))
  if (request.keep) kept = producer
  for (const messages of batches(request.messages.map(toSend), batchBytes(request))) {
    await producer.send({
      topic: request.topic,
      acks: { 0: 0, 1: 1, all: -1 }[request.acks],
      compression: COMPRESSIONS[request.codec],
      messages,
    })
  }
  if (!request.keep) await producer.disconnect()
}

class Member {
  constructor(request, options = {}) {
    this.seen = { owned: [], rebalances: 0, read: [], errors: [] }
    this.next = {}
    this.topic = request.topic
    this.consumer = kafka.consumer({
      groupId: request.group,
      sessionTimeout: 10_000,
      heartbeatInterval: 500,
      maxWaitTimeInMs: 200,
      readUncommitted: !request.committed,
      retry: RETRY,
      ...options,
    })
    const { GROUP_JOIN, REBALANCING, CRASH } = this.consumer.events
    this.consumer.on(GROUP_JOIN, ({ payload }) => {
      this.seen.rebalances += 1
      this.seen.owned = payload.memberAssignment[this.topic] ?? []
    })
    this.consumer.on(REBALANCING, () => {
      this.seen.owned = []
    })
    this.consumer.on(CRASH, ({ payload }) => this.seen.errors.push(String(payload.error)))
  }

  async start(onMessage) {
    await this.consumer.connect()
    await this.consumer.subscribe({ topic: this.topic, fromBeginning: true })
    await this.consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        this.seen.read.push([partition, Number(message.offset)])
        this.next[partition] = Number(message.offset) + 1
        onMessage?.(partition, message)
      },
    })
  }

  offsets() {
    return Object.entries(this.next).map(([partition, offset]) => ({
      topic: this.topic,
      partition: Number(partition),
      offset: String(offset),
    }))
  }

  // The next `count` messages; the partitions are paused after the last, so that `next` is what was taken.
  take(count) {
    return new Promise((resolve, reject) => {
      const taken = []
      const late = setTimeout(
        () => reject(new Error(`${count - taken.length} of ${count} messages did not come`)),
        DEADLINE_MS,
      )
      this.start((partition, message) => {
        taken.push(fromRead(partition, message))
        if (taken.length < count) return
        clearTimeout(late)
        this.consumer.pause([{ topic: this.topic }])
        resolve(taken)
      }).catch(reject)
    })
  }

  leave() {
    return this.consumer.disconnect()
  }
}

let serial = 0
// There is no assign() in kafkajs: a group of its own, with nothing committed, reads everything.
async function read(request) {
  const member = new Member({ ...request, group: `reader-${process.pid}-${serial++}` })
  const count = Object.values(request.counts).reduce((sum, part) => sum + part, 0)
  try {
    return await member.take(count)
  } finally {
    await member.leave()
  }
}

async function readGroup(request) {
  const member = new Member(request)
  try {
    const taken = await member.take(request.count)
    await member.consumer.commitOffsets(member.offsets())
    return taken
  } finally {
    await member.leave()
  }
}

let joined = null
async function join(request) {
  joined = new Member(request)
  await joined.start()
}

const transactional = new Map()
async function transactionalProducer(id) {
  if (!transactional.has(id)) {
    transactional.set(id, await opened({ transactionalId: id, idempotent: true, maxInFlightRequests: 1 }))
  }
  return transactional.get(id)
}

// Sends in one transaction and ends it: 'commit', 'abort', or '' to leave it open.
async function transact(request) {
  const transaction = await (await transactionalProducer(request.id)).transaction()
  await transaction.send({ topic: request.topic, messages: request.messages.map(toSend) })
  if (request.end) await transaction[request.end]()
}

// Copies messages of one topic to another in one transaction, with the offsets of what it read.
async function pipe(request) {
  const producer = await transactionalProducer(request.id)
  const member = new Member(request)
  try {
    const taken = await member.take(request.count)
    const transaction = await producer.transaction()
    await transaction.send({
      topic: request.to,
      messages: taken.map(({ key, value }) => ({ key: bytes(key), value: bytes(value) })),
    })
    const partitions = member.offsets().map(({ partition, offset }) => ({ partition, offset }))
    await transaction.sendOffsets({ consumerGroupId: request.group, topics: [{ topic: request.topic, partitions }] })
    await transaction[request.end]()
    return request.end === 'commit'
  } finally {
    await member.leave()
  }
}

const handlers = {
  send,
  read,
  read_group: readGroup,
  join,
  member: async () => joined.seen,
  commit: () => joined.consumer.commitOffsets(joined.offsets()),
  leave: () => joined.leave(),
  transact,
  pipe,
  ...admin(kafka),
}

async function answer(line) {
  try {
    const request = JSON.parse(line)
    return { result: (await handlers[request.do](request)) ?? null }
  } catch (error) {
    // The underlying errors are in the errors of a group of calls, or in the cause of a retry.
    const inner = [error, error.cause, ...(error.errors ?? [])].filter(Boolean)
    return { error: inner.map((each) => `${each.type ?? each.name}: ${each.message}`).join('; ') }
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write(`${JSON.stringify(await answer(line))}\n`)
  }
  process.exit(0)
}

main()
