// The requests that are one call of kafkajs's admin client each.
'use strict'

const { ConfigResourceTypes } = require('kafkajs')

const TOPIC = ConfigResourceTypes.TOPIC

module.exports = (kafka) => {
  const call = (handler) => async (request) => {
    const admin = kafka.admin({ retry: { retries: 5 } })
    await admin.connect()
    try {
      return await handler(admin, request)
    } finally {
      await admin.disconnect()
    }
  }
  const entries = (configs) => Object.entries(configs ?? {}).map(([name, value]) => ({ name, value }))

  const handlers = {
    create: async (admin, { topic, partitions, configs, validate_only: validateOnly }) => {
      const created = await admin.createTopics({
        validateOnly: validateOnly ?? false,
        waitForLeaders: !validateOnly,
        topics: [{ topic, numPartitions: partitions, replicationFactor: 1, configEntries: entries(configs) }],
      })
      if (!created) throw new Error('TOPIC_ALREADY_EXISTS')
    },
    topics: (admin) => admin.listTopics(),
    describe: async (admin, { topic }) =>
      (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length,
    grow: async (admin, { topic, partitions }) => {
      await admin.createPartitions({ topicPartitions: [{ topic, count: partitions }] })
    },
    delete: (admin, { topic }) => admin.deleteTopics({ topics: [topic] }),
    config: async (admin, { topic, name }) => {
      const resources = [{ type: TOPIC, name: topic, configNames: [name] }]
      return (await admin.describeConfigs({ resources, includeSynonyms: false })).resources[0].configEntries[0].configValue
    },
    alter: async (admin, { topic, configs }) => {
      await admin.alterConfigs({ resources: [{ type: TOPIC, name: topic, configEntries: entries(configs) }] })
    },
    start: async (admin, { topic }) =>
      Number((await admin.fetchTopicOffsets(topic)).find(({ partition }) => partition === 0).low),
    delete_records: async (admin, { topic, offset }) => {
      await admin.fetchTopicOffsets(topic) // it deletes only where it knows the leaders
      await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: String(offset) }] })
      return offset
    },
    groups: async (admin) => (await admin.listGroups()).groups.map(({ groupId }) => groupId),
    group: async (admin, { group }) => {
      const [{ state, members }] = (await admin.describeGroups([group])).groups
      return { state, members: members.length }
    },
    delete_group: async (admin, { group }) => {
      await admin.deleteGroups([group])
    },
    committed: async (admin, { group, topic }) => {
      const [{ partitions }] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
      const known = partitions.filter(({ offset }) => Number(offset) >= 0)
      return Object.fromEntries(known.map(({ partition, offset }) => [partition, Number(offset)]))
    },
    set_offset: async (admin, { group, topic, offset }) => {
      await admin.setOffsets({ groupId: group, topic, partitions: [{ partition: 0, offset: String(offset) }] })
    },
  }
  return Object.fromEntries(Object.entries(handlers).map(([name, handler]) => [name, call(handler)]))
}
