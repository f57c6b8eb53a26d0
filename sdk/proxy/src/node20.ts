/** The features of ECMAScript 2024 and later that the proxy uses and Node.js 20 lacks. */
import 'core-js/actual/iterator/index.js';
import 'core-js/actual/json/parse.js';
import 'core-js/actual/json/raw-json.js';
import 'core-js/actual/json/stringify.js';
import 'core-js/actual/map/group-by.js';
import 'core-js/actual/promise/with-resolvers.js';
