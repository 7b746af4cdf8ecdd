// How each client library opens connections with the settings of the user's client.

import { Broken } from './errors.js';
import { REPLY } from './machine/index.js';
import { inTime } from './time.js';

/** How one client library opens connections. */
export interface Maker {
  readonly isIo: boolean;
  readonly isCluster: boolean;
  /** Whether its client leads to a single address, whatever the server there becomes. */
  readonly isOneServer: boolean;
  /** The database. A Sentinel client of node-redis does not show it before a connection was made. */
  db: number;
  /** Equal for clients that certainly lead to the same locks. */
  readonly identity: string;
  /** For a cluster: the slots and nodes that its client knows. */
  learn(): Promise<{ slots: Map<number, string>; seeds: string[] }>;
  /**
   * A client that is not connected yet: to the primary, or to a node of a cluster. Also the address it leads to, if
   * known.
   */
  make(address?: string): Promise<[any, string?]>;
}

const IO = {
  lazyConnect: true,
  retryStrategy: () => null,
  sentinelRetryStrategy: () => null,
  reconnectOnError: null,
  maxRetriesPerRequest: 0,
  enableReadyCheck: false,
  autoResubscribe: false,
  autoResendUnfulfilledCommands: false,
  enableAutoPipelining: false,
  commandTimeout: undefined,
  socketTimeout: undefined,
  connectTimeout: REPLY,
  keyPrefix: '',
  readOnly: false,
};

export function ioredis(client: any): Maker {
  const isCluster = typeof client.nodes === 'function';
  const options = client.options ?? {};
  const where = isCluster
    ? client.startupNodes.map((node: any) => (typeof node === 'object' ? `${node.host}:${node.port}` : String(node))).sort()
    : [options.name, options.sentinels, options.path, options.host, options.port, options.db];
  return {
    isIo: true,
    isCluster,
    isOneServer: !isCluster && !options.sentinels,
    db: isCluster ? 0 : (options.db ?? 0),
    identity: JSON.stringify(where),
    async learn() {
      if (client.status !== 'ready') await new Promise((resolve) => client.once('ready', resolve));
      const slots = new Map<number, string>();
      client.slots.forEach((nodes: string[], slot: number) => nodes[0] && slots.set(slot, nodes[0]));
      return { slots, seeds: client.nodes('master').map((node: any) => `${node.options.host}:${node.options.port}`) };
    },
    async make(address) {
      if (address === undefined) return [client.duplicate(IO)];
      const [node] = client.nodes('all');
      if (!node) throw new Broken('the cluster client knows no node');
      return [node.duplicate({ ...IO, ...split(address) }), address];
    },
  };
}

export function nodeRedis(client: any): Maker {
  // Only a pool lacks it: a pool lends its connections, and does not show how they are made.
  if (typeof client.duplicate !== 'function') {
    throw new TypeError('a pool of node-redis cannot be used: give a client of createClient, createCluster or createSentinel');
  }
  const isCluster = Array.isArray(client.masters);
  const isSentinel = typeof client.getMasterNode === 'function';
  const plain = (node: any, socket: object) =>
    node.duplicate({
      socket: { ...node.options?.socket, ...socket, reconnectStrategy: false, connectTimeout: REPLY, socketTimeout: undefined },
      disableOfflineQueue: true,
      commandOptions: { timeout: undefined }, // the package's own: a signal for each command is a tenth of its cost
      keyPrefix: undefined,
      pingInterval: undefined,
      clientSideCache: undefined,
      maintNotifications: 'disabled',
    });
  const own = client._self ?? client;
  const options = client.options ?? {};
  const maker: Maker = {
    isIo: false,
    isCluster,
    isOneServer: !isCluster && !isSentinel,
    db: isCluster || isSentinel ? 0 : (options.database ?? 0),
    // From outside, one cannot see where a cluster or Sentinel client leads to: each of them gets a space of its own.
    identity: isCluster || isSentinel ? `node-redis ${++others}` : JSON.stringify([options.url, options.socket?.host, options.socket?.port, options.socket?.path, options.database]),
    async learn() {
      if (client.masters.length === 0) throw new Broken('the cluster client is not connected yet');
      const slots = new Map<number, string>();
      own.slots.forEach((shard: any, slot: number) => slots.set(slot, shard.master.address));
      return { slots, seeds: client.masters.map((node: any) => node.address) };
    },
    async make(address) {
      if (address !== undefined) {
        // Any client will do, even one that is not connected at the moment: only its settings are used.
        const known = client.masters.find((each: any) => each.client)?.client;
        const node = known ?? (await inTime(Promise.resolve(client.nodeClient(client.masters[0])), REPLY));
        return [plain(node, split(address)), address];
      }
      if (!isSentinel) return [plain(client, {})];
      const node: any = await inTime(own._execute(false, async (primary: any) => primary), REPLY);
      const { host, port } = node.options.socket;
      maker.db = node.options.database ?? 0;
      return [plain(node, {}), `${host}:${port}`];
    },
  };
  return maker;
}

let others = 0;

export function split(address: string): { host: string; port: number } {
  const at = address.lastIndexOf(':');
  return { host: address.slice(0, at), port: Number(address.slice(at + 1)) };
}
