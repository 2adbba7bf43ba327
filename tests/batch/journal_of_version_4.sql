-- A journal of format version 4, in which each prompt stands whole.
BEGIN TRANSACTION;
CREATE TABLE attempts (
  item INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  started TEXT NOT NULL,
  PRIMARY KEY (item, attempt)
) WITHOUT ROWID;
INSERT INTO "attempts" VALUES(0,1,'2026-11-23T14:45:45.878977+00:00');
INSERT INTO "attempts" VALUES(1,1,'2026-11-23T14:45:45.879243+00:00');
INSERT INTO "attempts" VALUES(2,1,'2026-11-23T14:45:45.880125+00:00');
CREATE TABLE items (
  id INTEGER NOT NULL PRIMARY KEY,
  digest TEXT NOT NULL,
  label TEXT NOT NULL,
  data TEXT
);
INSERT INTO "items" VALUES(0,'8eb73a9054201c7f577f3b89-2710f914651eaac2053cf3ae','','"A line, soon."');
INSERT INTO "items" VALUES(1,'18b4036bde104d99f45abc75-e70d84b170032d097ef9b22e','','"A line, never."');
INSERT INTO "items" VALUES(2,'9468db17173ff44ef3d7ddc8-7104021de5d3c8dd99dcceda','','"A line, slow."');
CREATE TABLE parts (
  sha256 TEXT NOT NULL PRIMARY KEY,
  data BLOB NOT NULL
);
CREATE TABLE results (
  item INTEGER NOT NULL PRIMARY KEY,
  attempt INTEGER NOT NULL,
  status TEXT NOT NULL,
  elapsed REAL NOT NULL,
  error TEXT,
  trace TEXT
);
INSERT INTO "results" VALUES(0,1,'passed',7.8216699989752669353e-04,NULL,'{"sampling_id":"83450e63f0e1b75e03a0d22d836e3340","started":"2026-11-23T14:45:45.879158+00:00","best_index":2,"prompts":[[],[{"role":"user","content":"A line, soon.\n\nRequirements:\n- contains \"rain\""}],[{"role":"user","content":"A line, soon.\n\nRequirements:\n- contains \"rain\""},{"role":"assistant","content":"sun 1"}],[{"role":"user","content":"A line, soon.\n\nRequirements:\n- contains \"rain\""},{"role":"assistant","content":"sun 1"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""}],[{"role":"user","content":"A line, soon.\n\nRequirements:\n- contains \"rain\""},{"role":"assistant","content":"sun 1"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},{"role":"assistant","content":"sun 2"}],[{"role":"user","content":"A line, soon.\n\nRequirements:\n- contains \"rain\""},{"role":"assistant","content":"sun 1"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},{"role":"assistant","content":"sun 2"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""}]],"places":[[1,0,1],[2,2,3],[3,4,5]]}');
INSERT INTO "results" VALUES(1,1,'failed',1.0508170000775862718e-03,NULL,'{"sampling_id":"365115c0b0ec669157b0497e3f97a4e4","stop_reason":"exhausted","started":"2026-11-23T14:45:45.879292+00:00","best_index":3,"prompts":[[],[{"role":"user","content":"A line, never.\n\nRequirements:\n- contains \"rain\""}],[{"role":"user","content":"A line, never.\n\nRequirements:\n- contains \"rain\""},{"role":"assistant","content":"sun 1"}],[{"role":"user","content":"A line, never.\n\nRequirements:\n- contains \"rain\""},{"role":"assistant","content":"sun 1"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""}],[{"role":"user","content":"A line, never.\n\nRequirements:\n- contains \"rain\""},{"role":"assistant","content":"sun 1"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},{"role":"assistant","content":"sun 2"}],[{"role":"user","content":"A line, never.\n\nRequirements:\n- contains \"rain\""},{"role":"assistant","content":"sun 1"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},{"role":"assistant","content":"sun 2"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""}],[{"role":"user","content":"A line, never.\n\nRequirements:\n- contains \"rain\""},{"role":"assistant","content":"sun 1"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},{"role":"assistant","content":"sun 2"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},{"role":"assistant","content":"sun 3"}],[{"role":"user","content":"A line, never.\n\nRequirements:\n- contains \"rain\""},{"role":"assistant","content":"sun 1"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},{"role":"assistant","content":"sun 2"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},{"role":"assistant","content":"sun 3"},{"role":"user","content":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""}]],"places":[[1,0,1],[2,2,3],[3,4,5],[4,6,7]]}');
CREATE TABLE run (
  name TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "run" VALUES('ended','"2026-11-23T14:45:46.184243+00:00"');
INSERT INTO "run" VALUES('identity','{"strategy":{"class":"mellea_like.sampling.strategies.MultiTurnStrategy","loop_budget":4,"concurrency_budget":1,"selection":"first"},"requirements":[{"description":"contains \"rain\"","validator":"mellea_like.requirements.checks_common.check.<locals>.decide"}],"model":{"provider":"function","model":"answer"},"options":{},"format":null,"prompt":null,"input":null}');
INSERT INTO "run" VALUES('sittings','[["2026-11-23T14:45:45.877616+00:00","2026-11-23T14:45:46.184243+00:00"]]');
INSERT INTO "run" VALUES('started','"2026-11-23T14:45:45.870705+00:00"');
INSERT INTO "run" VALUES('text','"all"');
INSERT INTO "run" VALUES('versions','{"mellea_like":"0.1.0","Python":"3.11.7"}');
CREATE TABLE slices (
  item INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  iteration INTEGER NOT NULL,
  requests INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  unknown INTEGER NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (item, attempt, iteration)
);
INSERT INTO "slices" VALUES(0,1,1,1,0,0,0,'{"outcome":"failed","started_at":0.00005875800002286269,"ended_at":0.0002873890000500978,"action":"Instruction","text":"sun 1","model":"answer","validations":[{"name":"contains","description":"contains \"rain\"","status":"failed","reason":"it does not contain \"rain\"","score":0.0}],"asked":"answer"}');
INSERT INTO "slices" VALUES(1,1,1,1,0,0,0,'{"outcome":"failed","started_at":0.00002062099997601763,"ended_at":0.0003048850001050596,"action":"Instruction","text":"sun 1","model":"answer","validations":[{"name":"contains","description":"contains \"rain\"","status":"failed","reason":"it does not contain \"rain\"","score":0.0}],"asked":"answer"}');
INSERT INTO "slices" VALUES(0,1,2,1,0,0,0,'{"depth":1,"outcome":"failed","started_at":0.00041597999984333,"ended_at":0.0005574009999236296,"action":{"type":"Message","text":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},"text":"sun 2","model":"answer","validations":[{"name":"contains","description":"contains \"rain\"","status":"failed","reason":"it does not contain \"rain\"","score":0.0}],"asked":"answer"}');
INSERT INTO "slices" VALUES(1,1,2,1,0,0,0,'{"depth":1,"outcome":"failed","started_at":0.0003591060001326696,"ended_at":0.000490592000005563,"action":{"type":"Message","text":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},"text":"sun 2","model":"answer","validations":[{"name":"contains","description":"contains \"rain\"","status":"failed","reason":"it does not contain \"rain\"","score":0.0}],"asked":"answer"}');
INSERT INTO "slices" VALUES(0,1,3,1,0,0,0,'{"depth":2,"started_at":0.0006037000000560511,"ended_at":0.0007162079998579429,"action":{"type":"Message","text":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},"text":"rain","model":"answer","validations":[{"name":"contains","description":"contains \"rain\"","reason":"it contains \"rain\"","score":1.0}],"asked":"answer"}');
INSERT INTO "slices" VALUES(1,1,3,1,0,0,0,'{"depth":2,"outcome":"failed","started_at":0.000536519999968732,"ended_at":0.0007551559999683377,"action":{"type":"Message","text":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},"text":"sun 3","model":"answer","validations":[{"name":"contains","description":"contains \"rain\"","status":"failed","reason":"it does not contain \"rain\"","score":0.0}],"asked":"answer"}');
INSERT INTO "slices" VALUES(1,1,4,1,0,0,0,'{"depth":3,"outcome":"failed","started_at":0.0007994520001375349,"ended_at":0.0009750740000527003,"action":{"type":"Message","text":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},"text":"sun 4","model":"answer","validations":[{"name":"contains","description":"contains \"rain\"","status":"failed","reason":"it does not contain \"rain\"","score":0.0}],"asked":"answer"}');
INSERT INTO "slices" VALUES(2,1,1,1,0,0,0,'{"outcome":"failed","started_at":0.000026017999971372774,"ended_at":0.00033306599993920827,"action":"Instruction","text":"sun 1","model":"answer","validations":[{"name":"contains","description":"contains \"rain\"","status":"failed","reason":"it does not contain \"rain\"","score":0.0}],"asked":"answer"}');
INSERT INTO "slices" VALUES(2,1,2,1,0,0,0,'{"depth":1,"outcome":"cancelled","started_at":0.0003978130000632518,"ended_at":0.3023713330001101,"action":{"type":"Message","text":"That was not accepted. Put this right, and give the whole answer again:\n- contains \"rain\": it does not contain \"rain\""},"finish_reason":null,"generation_usage":null,"asked":"answer"}');
COMMIT;
PRAGMA application_id = 1296853612;
PRAGMA user_version = 4;
