//! The table of commands: what COMMAND tells, what arguments are checked against, and what is
//! refused, with the reason.
//!
//! *Invariants*: resp.T1. Both tables are sorted by name, and no name is in both.
//!
//! *Thread safety*: constants.

use crate::command::{self, CommandWords, ParsedCommand};
use crate::reply::RespReply;

/// A command of the table.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// In upper case.
    pub name: &'static str,
    /// Number of words with the name; negative if there may be more.
    pub arity: i64,
    /// Flags as COMMAND names them, separated by spaces.
    pub flags: &'static str,
    /// The places of the first and the last key, the last negative from the end, and the step
    /// between keys; zeros if there is none.
    pub keys: (i64, i64, i64),
    /// Group as COMMAND DOCS names it.
    pub group: &'static str,
    pub summary: &'static str,
    pub(crate) parse: fn(CommandWords) -> ParsedCommand,
}

const NO_KEY: (i64, i64, i64) = (0, 0, 0);
const ONE_KEY: (i64, i64, i64) = (1, 1, 1);
const ALL_KEYS: (i64, i64, i64) = (1, -1, 1);
const READ: &str = "readonly fast";
const READ_MANY: &str = "readonly";
const WRITE: &str = "write denyoom fast";
const REMOVE: &str = "write";
const CONNECTION: &str = "loading stale fast";
const BEFORE_AUTH: &str = "loading stale fast no_auth";

macro_rules! commands {
    ($($name:literal $arity:literal $flags:ident $keys:ident $group:literal $parse:ident $summary:literal;)*) => {
        &[$(CommandSpec {
            name: $name,
            arity: $arity,
            flags: $flags,
            keys: $keys,
            group: $group,
            summary: $summary,
            parse: command::$parse,
        },)*]
    };
}

/// All commands, by name.
pub const COMMANDS: &[CommandSpec] = commands! {
    "APPEND" 3 WRITE ONE_KEY "string" append "Append to a value";
    "AUTH" -2 BEFORE_AUTH NO_KEY "connection" auth "Prove the password";
    "CLIENT" -2 CONNECTION NO_KEY "connection" client "Name this connection, or list connections";
    "COMMAND" -1 CONNECTION NO_KEY "server" command "Describe the commands";
    "CONFIG" -2 CONNECTION NO_KEY "server" config "Show settings: GET only";
    "DBSIZE" -1 READ_MANY NO_KEY "server" count "Count the keys, recently or with SCAN now";
    "DECR" 2 WRITE ONE_KEY "string" decrement "Subtract 1";
    "DECRBY" 3 WRITE ONE_KEY "string" decrement_by "Subtract an integer";
    "DEL" -2 REMOVE ALL_KEYS "generic" remove "Remove keys, each by itself";
    "ECHO" 2 CONNECTION NO_KEY "connection" echo "Return the argument";
    "EXISTS" -2 READ ALL_KEYS "generic" exists "Count those keys that exist";
    "EXPIRETIME" 2 READ ONE_KEY "generic" time_to_live "-1, or -2 for an absent key";
    "FLUSHALL" -1 REMOVE NO_KEY "server" clear "Remove all keys";
    "FLUSHDB" -1 REMOVE NO_KEY "server" clear "Remove all keys";
    "FUNCTION" -2 CONNECTION NO_KEY "scripting" function "FLUSH and LIST: there are no functions";
    "GET" 2 READ ONE_KEY "string" get "Return a value";
    "GETBIT" 3 READ ONE_KEY "bitmap" get_bit "Return a bit of a value";
    "GETEX" -2 READ ONE_KEY "string" get_expire "Return a value; refuses expiry";
    "GETRANGE" 4 READ_MANY ONE_KEY "string" get_range "Return a part of a value";
    "GETSET" 3 WRITE ONE_KEY "string" get_set "Set a value and return the one before";
    "HELLO" -1 BEFORE_AUTH NO_KEY "connection" hello "Choose version 2 or 3 of the protocol";
    "INCR" 2 WRITE ONE_KEY "string" increment "Add 1";
    "INCRBY" 3 WRITE ONE_KEY "string" increment_by "Add an integer";
    "INCRBYFLOAT" 3 WRITE ONE_KEY "string" increment_decimal "Add a decimal number";
    "INFO" -1 CONNECTION NO_KEY "server" info "Describe the server";
    "KEYS" 2 READ_MANY NO_KEY "generic" keys "Return the keys that match a pattern, in order";
    "MGET" -2 READ ALL_KEYS "string" get_many "Return values, each by itself";
    "MSET" -3 WRITE SET_KEYS "string" set_many "Set values, each by itself";
    "PERSIST" 2 READ ONE_KEY "generic" persist "Return 0: no key expires";
    "PEXPIRETIME" 2 READ ONE_KEY "generic" time_to_live "-1, or -2 for an absent key";
    "PING" -1 CONNECTION NO_KEY "connection" ping "Answer";
    "PTTL" 2 READ ONE_KEY "generic" time_to_live "-1, or -2 for an absent key";
    "QUIT" -1 BEFORE_AUTH NO_KEY "connection" quit "End the connection";
    "RESET" 1 BEFORE_AUTH NO_KEY "connection" reset "Forget what this connection has set";
    "RI.COUNT" -4 READ_MANY NO_KEY "ordered" index_count "Count the keys from START to END";
    "RI.DEL" -3 REMOVE NO_KEY "ordered" index_remove "Remove keys, each by itself";
    "RI.DELRANGE" -4 REMOVE NO_KEY "ordered" index_remove_range "Remove the keys from START to END";
    "RI.EXISTS" -2 READ NO_KEY "ordered" index_exists "Tell whether there is such an index or key";
    "RI.GET" 3 READ NO_KEY "ordered" index_get "Return a value";
    "RI.RANGE" -4 READ_MANY NO_KEY "ordered" index_range "Return the records from START to END";
    "RI.SCAN" -5 READ_MANY NO_KEY "ordered" index_scan "Return COUNT records from START on";
    "RI.SET" 4 WRITE NO_KEY "ordered" index_set "Set a value";
    "SCAN" -2 READ_MANY NO_KEY "generic" scan "Iterate over the keys, in order";
    "SCRIPT" -2 CONNECTION NO_KEY "scripting" function "FLUSH: there are no scripts";
    "SELECT" 2 CONNECTION NO_KEY "connection" select "Choose database 0, the only one";
    "SET" -3 WRITE ONE_KEY "string" set "Set a value, under a condition; refuses expiry";
    "SETBIT" 4 WRITE ONE_KEY "bitmap" set_bit "Set a bit of a value";
    "SETNX" 3 WRITE ONE_KEY "string" set_absent "Set the value of an absent key";
    "SETRANGE" 4 WRITE ONE_KEY "string" set_range "Overwrite a part of a value";
    "STRLEN" 2 READ ONE_KEY "string" length "Return the length of a value";
    "SUBSTR" 4 READ_MANY ONE_KEY "string" get_range "Return a part of a value";
    "TIME" 1 CONNECTION NO_KEY "server" time "Return the gateway's time";
    "TOUCH" -2 READ ALL_KEYS "generic" exists "Count those keys that exist";
    "TTL" 2 READ ONE_KEY "generic" time_to_live "-1, or -2 for an absent key";
    "TYPE" 2 READ ONE_KEY "generic" type_of "string, or none for an absent key";
    "UNLINK" -2 REMOVE ALL_KEYS "generic" remove "Remove keys, each by itself";
    "WAIT" 3 CONNECTION NO_KEY "generic" wait "Return 0: there are no replicas";
};

const SET_KEYS: (i64, i64, i64) = (1, -1, 2);

const TYPES: &str = "there are only strings, no other types";
const PARTS: &str = "of parts of strings only ranges and single bits are served";
const ORDER: &str = "an ordered index has no random key: use RI.SCAN";
const SEVERAL: &str = "several keys are never changed together atomically";
const EXPIRY: &str = "this cluster has no expiry";
const REMOVAL: &str = "the index cannot yet remove a key under a condition";
const SCRIPTS: &str = "there are no scripts and functions";
const CHANNELS: &str = "there are no channels";
const OPERATION: &str = "the cluster is operated by the program farleaf";
const INDEXES: &str = "a cluster has one index, of the cluster's name";

macro_rules! refused {
    ($($reason:ident: $($name:literal)*;)*) => { &[$($(($name, $reason),)*)*] };
}

/// Commands of Redis that are refused, with the reasons.
pub const REFUSED: &[(&str, &str)] = refused! {
    OPERATION: "ACL" "ASKING" "BGREWRITEAOF" "BGSAVE" "CLUSTER" "DEBUG" "FAILOVER" "LASTSAVE"
        "LATENCY" "MEMORY" "MIGRATE" "MODULE" "MONITOR" "OBJECT" "PSYNC" "READONLY" "READWRITE"
        "REPLICAOF" "ROLE" "SAVE" "SHUTDOWN" "SLAVEOF" "SLOWLOG" "SYNC" "DUMP" "RESTORE";
    ORDER: "RANDOMKEY";
    PARTS: "BITCOUNT" "BITFIELD" "BITFIELD_RO" "BITOP" "BITPOS" "LCS";
    SEVERAL: "COPY" "DISCARD" "EXEC" "MOVE" "MSETEX" "MSETNX" "MULTI" "RENAME" "RENAMENX" "SWAPDB"
        "UNWATCH" "WATCH";
    EXPIRY: "EXPIRE" "EXPIREAT" "PEXPIRE" "PEXPIREAT" "PSETEX" "SETEX";
    REMOVAL: "DELEX" "DELIFEQ" "GETDEL";
    SCRIPTS: "EVAL" "EVALSHA" "EVALSHA_RO" "EVAL_RO" "FCALL" "FCALL_RO";
    CHANNELS: "PSUBSCRIBE" "PUBLISH" "PUBSUB" "PUNSUBSCRIBE" "SPUBLISH" "SSUBSCRIBE" "SUBSCRIBE"
        "SUNSUBSCRIBE" "UNSUBSCRIBE";
    INDEXES: "RI.CONFIG" "RI.CREATE" "RI.METRICS";
    TYPES: "BLMOVE" "BLMPOP" "BLPOP" "BRPOP"
        "BRPOPLPUSH" "BZMPOP" "BZPOPMAX" "BZPOPMIN" "GEOADD" "GEODIST" "GEOHASH" "GEOPOS"
        "GEORADIUS" "GEOSEARCH" "GEOSEARCHSTORE" "HDEL" "HEXISTS" "HGET" "HGETALL"
        "HINCRBY" "HINCRBYFLOAT" "HKEYS" "HLEN" "HMGET" "HMSET" "HRANDFIELD" "HSCAN" "HSET"
        "HSETNX" "HSTRLEN" "HVALS" "LINDEX" "LINSERT" "LLEN" "LMOVE" "LMPOP" "LPOP" "LPOS"
        "LPUSH" "LPUSHX" "LRANGE" "LREM" "LSET" "LTRIM" "PFADD" "PFCOUNT" "PFMERGE" "RPOP"
        "RPOPLPUSH" "RPUSH" "RPUSHX" "SADD" "SCARD" "SDIFF" "SDIFFSTORE" "SINTER"
        "SINTERCARD" "SINTERSTORE" "SISMEMBER" "SMEMBERS" "SMISMEMBER" "SMOVE" "SORT" "SORT_RO"
        "SPOP" "SRANDMEMBER" "SREM" "SSCAN" "SUNION" "SUNIONSTORE" "XACK" "XADD" "XAUTOCLAIM"
        "XCLAIM" "XDEL" "XGROUP" "XINFO" "XLEN" "XPENDING" "XRANGE" "XREAD" "XREADGROUP"
        "XREVRANGE" "XSETID" "XTRIM" "ZADD" "ZCARD" "ZCOUNT" "ZDIFF" "ZDIFFSTORE" "ZINCRBY"
        "ZINTER" "ZINTERCARD" "ZINTERSTORE" "ZLEXCOUNT" "ZMPOP" "ZMSCORE" "ZPOPMAX" "ZPOPMIN"
        "ZRANDMEMBER" "ZRANGE" "ZRANGEBYLEX" "ZRANGEBYSCORE" "ZRANGESTORE" "ZRANK" "ZREM"
        "ZREMRANGEBYLEX" "ZREMRANGEBYRANK" "ZREMRANGEBYSCORE" "ZREVRANGE" "ZREVRANGEBYLEX"
        "ZREVRANGEBYSCORE" "ZREVRANK" "ZSCAN" "ZSCORE" "ZUNION" "ZUNIONSTORE";
};

/// The longest name of a command that is looked up.
const MAX_NAME_BYTES: usize = 32;

/// The command of this name, in any case.
pub(crate) fn find(name: &[u8]) -> Option<&'static CommandSpec> {
    let mut upper = [0; MAX_NAME_BYTES];
    let upper = upper.get_mut(..name.len())?;
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    let place = COMMANDS.binary_search_by(|spec| spec.name.as_bytes().cmp(upper));
    place.ok().map(|place| &COMMANDS[place])
}

/// The reply to a command that is in no table, or in that of the refused ones.
pub(crate) fn refusal(name: &[u8]) -> RespReply {
    let text = command::upper(&name[..name.len().min(MAX_NAME_BYTES * 4)]);
    match REFUSED.iter().find(|(refused, _)| *refused == text) {
        Some((_, reason)) => RespReply::error(format!("{text} is refused: {reason}")),
        None => RespReply::error(format!("unknown command '{text}'")),
    }
}

impl CommandSpec {
    /// Whether a command of so many words can be this one.
    pub(crate) fn accepts(&self, words: usize) -> bool {
        let wanted = usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX);
        if self.arity < 0 { words >= wanted } else { words == wanted }
    }

    /// Parses a command with this name.
    pub(crate) fn parse(&self, words: Vec<Vec<u8>>) -> ParsedCommand {
        if !self.accepts(words.len()) {
            let name = self.name.to_ascii_lowercase();
            let text = format!("wrong number of arguments for '{name}' command");
            return Err(RespReply::error(text));
        }
        (self.parse)(CommandWords::new(self.name, words))
    }

    /// The flags.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> {
        self.flags.split(' ')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_tables_are_sorted_and_disjoint() {
        assert!(COMMANDS.is_sorted_by(|left, right| left.name < right.name));
        let served: BTreeSet<&str> = COMMANDS.iter().map(|spec| spec.name).collect();
        let refused: BTreeSet<&str> = REFUSED.iter().map(|(name, _)| *name).collect();
        assert_eq!(refused.len(), REFUSED.len());
        assert!(served.is_disjoint(&refused));
        assert!(served.iter().all(|name| find(name.to_lowercase().as_bytes()).is_some()));
        assert!(find(&[b'a'; 100]).is_none() && find(b"").is_none() && find(b"GETDEL").is_none());
    }

    #[test]
    fn a_refusal_names_the_command() {
        let text = |name: &str| match refusal(name.as_bytes()) {
            RespReply::Error(text) => text.into_owned(),
            other => panic!("{other:?}"),
        };
        assert!(text("multi").contains("MULTI is refused: several keys"));
        assert!(text("expire").contains("EXPIRE is refused: this cluster has no expiry"));
        assert_eq!(text("nonsense"), "ERR unknown command 'NONSENSE'");
        assert!(text(&"x".repeat(100_000)).len() < 200);
    }
}
